"""The paper's engine: bids, the dual subroutine, and the prices of a round."""
