"""Rewards for the reward-based baselines; the contrastive methods never read them."""
