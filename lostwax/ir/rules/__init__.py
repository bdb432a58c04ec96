"""The IR specification as rules, and the verifier that checks them."""
