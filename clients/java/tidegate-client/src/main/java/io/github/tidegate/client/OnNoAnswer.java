package io.github.tidegate.client;

/** What a check or a reservation without an answer means. */
public enum OnNoAnswer {
    /** This process enforces a share of the limit by itself. */
    LOCAL,
    /** Every request is allowed. */
    ALLOW,
    /** Every request is denied. */
    DENY
}
