package io.github.tidegate.client;

/** Observes calls, for metrics. Called in the thread that ends the call, and must not block. */
@FunctionalInterface
public interface CallListener {
    /** How a call ended. */
    enum Outcome {
        /** Allowed, or done. */
        ALLOWED,
        /** Denied. */
        DENIED,
        /** Refused as invalid. */
        REFUSED,
        /** No answer to a call that nothing replaces, such as a commit. */
        NO_ANSWER
    }

    /**
     * A call has ended.
     *
     * @param operation {@code check}, {@code authorize}, {@code reserve} and so on
     * @param rule rule of the request; {@code several} for more than one
     * @param outcome how it ended
     * @param answered false if {@link OnNoAnswer} decided
     * @param nanos duration of the call
     */
    void ended(String operation, String rule, Outcome outcome, boolean answered, long nanos);
}
