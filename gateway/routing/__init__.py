"""Which replica gets a request, and what follows where it gives no answer."""
