"""Which of the assignments found becomes the plan: all are simulated alike."""
