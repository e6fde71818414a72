"""Contract tests and generators for those who write a policy of their own. Needs the extra ``[test]``."""
