"""Jobs that are put on one GPU: who, and what each keeps of its speed."""
