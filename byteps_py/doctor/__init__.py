"""``bps doctor``: what on this host makes jobs hang or crawl."""
