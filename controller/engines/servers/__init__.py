"""The engines that are servers for models: tables, compatibility and command lines."""
