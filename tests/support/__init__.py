"""What several tests share: small experiments, planted faults, made-up files, worked examples."""
