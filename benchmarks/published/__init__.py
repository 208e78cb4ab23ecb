"""What the papers print, beside what is predicted; `data` holds their figures with sources."""
