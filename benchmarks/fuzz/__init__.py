"""Every parser fed with mutations of what was really captured: nothing but a clear error may come of it."""
