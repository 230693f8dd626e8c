"""Timing: models run in processes of their own, in turns, and where the time of a run went. `bench`, `profile` and the compiler stand on it."""
