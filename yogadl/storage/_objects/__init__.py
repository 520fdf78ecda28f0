"""Object stores: seven verbs, the SDKs that have them, and retries."""
