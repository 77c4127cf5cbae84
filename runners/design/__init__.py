"""A reward designed for a task: code from an author that is tried, or a table that a linear program solves for."""
