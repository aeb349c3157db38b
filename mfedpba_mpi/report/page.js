// Clicking a column header sorts the table by that column: ascending, descending, then the original order. In both
// directions numbers (data-value) come before text, and missing cells (an empty data-value) come last.
"use strict";
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const order = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const compareText = new Intl.Collator("en", { numeric: true }).compare;
  const key = (row, column) => {
    const { textContent, dataset: { value } } = row.cells[column];
    return value === undefined ? [1, textContent] : value === "" ? [2, 0] : [0, Number(value)];
  };
  const compare = ([kind, a], [otherKind, b], sign) =>
    kind - otherKind || sign * (kind === 1 ? compareText(a, b) : (a > b) - (a < b));

  heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
    const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort];
    heads.forEach((other) => { other.ariaSort = "none"; });
    head.ariaSort = next;
    const sign = next === "descending" ? -1 : 1;
    const keys = new Map(order.map((row) => [row, key(row, column)]));
    const sorted = [...order].sort((a, b) => compare(keys.get(a), keys.get(b), sign));
    body.replaceChildren(...(next === "none" ? order : sorted));
  }));
}
