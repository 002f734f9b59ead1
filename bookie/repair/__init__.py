"""The service that brings copies back: who lacks which, and who copies them."""
