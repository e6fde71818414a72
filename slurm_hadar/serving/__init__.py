"""Models served within deadlines, after Orloj (Yu et al., arXiv 2209.00159): scheduler, simulator, server, client.

What of it is the paper's and what our reconstruction is said in docs/serving.md.
"""
