package io.github.tidegate.client;

/**
 * The server gave no answer within the deadline, could not be reached, or reported that it cannot
 * decide. The call may have been charged. Checks and reservations do not throw it: the configured
 * {@link OnNoAnswer} decides.
 */
public final class NoAnswerException extends TidegateException {
    /** HTTP status, or 0. */
    private final int status;

    NoAnswerException(String message, Throwable cause) {
        super(message, cause);
        this.status = 0;
    }

    NoAnswerException(int status, String detail) {
        super(status + ": " + detail, null);
        this.status = status;
    }

    /**
     * The HTTP status of a server that cannot decide.
     *
     * @return 503 or another 5xx; 0 if there was no response
     */
    public int status() {
        return status;
    }
}
