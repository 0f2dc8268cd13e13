//! What the two ends agree on: ciphers, peer info, options strings, pushed options.
