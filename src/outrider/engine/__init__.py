"""The engine: batches of requests, round after round."""
