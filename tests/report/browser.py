"""A real browser for tests: headless Chromium, controlled by the DevTools protocol over a pair of pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.debian import install

PACKAGE = "chromium"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}


def unavailable() -> str:
    """Why no browser is available, or ''. Tries to install Debian's package if there is none."""
    return "" if _program() else install(PACKAGE)


def _program() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Browser:
    """A context manager that runs the browser. It also ends if this process dies, because its pipes close."""

    def __enter__(self) -> Self:
        program = _program()
        assert program, "see `unavailable`"
        with ExitStack() as stack:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True))
            sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
            # Chromium reads commands from file descriptor 3 and writes replies to 4.
            line = ("sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh", program, *OPTIONS, *sandbox)
            self._process = subprocess.Popen(
                [*line, f"--user-data-dir={home}"], stdin=-1, stdout=-1, stderr=-3, bufsize=0,
                start_new_session=True, env={**os.environ, "HOME": home},
            )  # fmt: skip
            stack.callback(self._end)
            self._numbers, self._buffer = itertools.count(1), b""
            self.events: list[dict[str, Any]] = []
            self.send("Browser.getVersion")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> "Tab":
        """Load a file in a new tab."""
        return Tab(self, path, width, height, dark)

    def send(self, method: str, session: str = "", **params: object) -> dict[str, Any]:
        """Send a command and return its result. Events received meanwhile are stored in `events`."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        assert self._process.stdin
        self._process.stdin.write(json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != number:
            self.events.append(message)
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def wait_for(self, method: str, session: str) -> None:
        """Wait until this event is received."""
        while not any(event["method"] == method for event in self._of(session)):
            self.events.append(self._receive())

    def _of(self, session: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("sessionId") == session]

    def _receive(self, timeout: float = 30) -> dict[str, Any]:
        assert self._process.stdout
        end = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            if not select.select([self._process.stdout], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError(f"no message from the browser for {timeout:.0f} s")
            if not (data := os.read(self._process.stdout.fileno(), 1 << 20)):
                raise ConnectionError("the browser has exited")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Tab:
    """A page in the browser. Its requests, errors and console messages are recorded."""

    def __init__(self, browser: Browser, path: Path, width: int, height: int, dark: bool) -> None:
        self.browser, self.url = browser, path.resolve().as_uri()
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)
        self.resize(width, height)
        self.emulate("dark" if dark else "light")
        self.send("Page.navigate", url=self.url)
        browser.wait_for("Page.loadEventFired", self.session)

    def send(self, method: str, **params: object) -> dict[str, Any]:
        """Send a command to this tab and return its result."""
        return self.browser.send(method, self.session, **params)

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the viewport."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def emulate(self, scheme: str, media: str = "screen") -> None:
        """Set the colour scheme (light or dark) and the medium (screen or print)."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page, await its promise, and return its value."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """Click the centre of an element with the mouse."""
        x, y = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2] }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key; the focused element receives it."""
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def requests(self) -> list[str]:
        """The URLs of all requests."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def messages(self) -> list[dict[str, Any]]:
        """Errors, warnings and other console messages."""
        names = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event["params"] for name in names for event in self._events(name)]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Save an image of the page, or of the viewport only."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """Close the tab."""
        self.browser.send("Target.closeTarget", targetId=self.target)

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.browser._of(self.session) if event["method"] == method]
