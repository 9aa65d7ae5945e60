"""Tables for people; names, JSON, YAML and templates for programs."""
