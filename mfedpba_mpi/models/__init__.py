"""Client networks (extractors and classifier), their training passes, and the input rows of a client."""
