"""What worker and executor have in common: framing and messages. Pure: no sockets, no clock, no threads."""
