"""The networks a client trains, and its rows as those networks read them."""
