"""Federated learning methods: each module has a client, a server and the layouts of their messages."""
