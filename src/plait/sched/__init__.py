"""What runs now: schedulers turn waiting and running sequences into decisions."""
