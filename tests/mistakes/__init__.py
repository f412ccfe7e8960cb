"""Mistakes as users make them: mistakes.yaml says what is typed, and what the answer must name."""
