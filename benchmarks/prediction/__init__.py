"""The accuracy of predicted step times, compared with measurements on emulated machines."""
