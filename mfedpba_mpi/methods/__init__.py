"""The methods: each is one module with a client, a server and the layout of what they exchange."""
