"""HTTP/1.1 connections: what is read, what is written, and which connections are kept."""
