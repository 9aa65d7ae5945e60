"""What requests used: tokens from the engines' own answers, counted by key, model, endpoint and minute."""
