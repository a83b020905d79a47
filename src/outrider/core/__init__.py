"""The exact round: records, noise, laws, acceptance rules, and the loop that joins them."""
