"""Search methods: beam, greedy, sampling; the length penalty and top-k."""
