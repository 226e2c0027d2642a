"""Computing power: its ids, and what is booked of each device."""
