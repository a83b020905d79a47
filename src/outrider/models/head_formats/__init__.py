"""The file formats that draft heads come in: EAGLE-1 to 3, speculators, Medusa and vLLM's Medusa."""
