"""What users write: the manifests, the parser, and the messages that refuse what is not valid."""
