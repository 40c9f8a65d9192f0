"""Messages with a delay level: where they are scheduled and when they are delivered."""
