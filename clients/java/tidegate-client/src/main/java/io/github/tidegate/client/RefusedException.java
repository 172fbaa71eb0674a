package io.github.tidegate.client;

/**
 * The server refused the request as invalid: an unknown rule, a missing key, a wrong token. It is
 * an error of the program or its configuration, never a decision, whatever {@link OnNoAnswer} says.
 * Nothing was charged.
 */
public final class RefusedException extends TidegateException {
    /** HTTP status. */
    private final int status;
    /** Invalid field, or empty. */
    private final String field;

    RefusedException(int status, String field, String detail) {
        super(status + (field.isEmpty() ? "" : ", " + field) + ": " + detail, null);
        this.status = status;
        this.field = field;
    }

    /**
     * The HTTP status; errors over RESP are mapped to it.
     *
     * @return 400, 401, 403, 404, 409 or another 4xx
     */
    public int status() {
        return status;
    }

    /**
     * The invalid field.
     *
     * @return its name, or an empty string if the request is not about one
     */
    public String field() {
        return field;
    }
}
