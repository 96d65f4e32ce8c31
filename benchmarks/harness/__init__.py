"""What every benchmark uses: settings, clocks, baselines, results and reports."""
