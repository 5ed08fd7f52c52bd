"""`tierd eval`: what policies over tokens cost in quality and save in memory, with a real model on real text."""
