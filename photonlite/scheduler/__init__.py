"""Who runs next: queues, admission, pre-emption and the time budget of launches. No torch."""
