"""How answers look: tables and JSON, quantities, safe text, the streams they go to."""
