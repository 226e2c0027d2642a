"""Computing power: its ids, what is booked of each device, and what a container learns of its own."""
