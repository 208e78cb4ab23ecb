"""Problems and solutions in files of the ASPLOS/EuroSys 2025 contest's form."""
