"""Phase B and the fine-tune of phase C: the loop, alternation, regularisers, checkpoints."""
