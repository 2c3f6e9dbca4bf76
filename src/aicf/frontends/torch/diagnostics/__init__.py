"""What a person is told: warnings, `require="streamed"`, and errors of their own call."""
