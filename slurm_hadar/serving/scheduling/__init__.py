"""Which requests go into the next batch, and on which worker: pure, without clock or input of its own."""
