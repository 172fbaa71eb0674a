package io.github.tidegate.client;

/** A denied request. */
public final class RateLimitedException extends TidegateException {
    /** Not serialised: a decision is about one moment. */
    private final transient Decision decision;

    /**
     * An exception for this decision.
     *
     * @param decision a denial
     */
    public RateLimitedException(Decision decision) {
        super("denied by " + decision.rule() + " (" + decision.source() + ")", null);
        this.decision = decision;
    }

    /**
     * The denial.
     *
     * @return the decision with its limits and waits
     */
    public Decision decision() {
        return decision;
    }

    /** Denials are frequent and expected: no stack trace is recorded. */
    @Override
    public synchronized Throwable fillInStackTrace() {
        return this;
    }
}
